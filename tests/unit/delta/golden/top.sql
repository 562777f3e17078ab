-- SELECT id FROM orders ORDER BY amount DESC NULLS LAST LIMIT 10
-- stored as top; changed: orders
WITH scan1 AS (
  SELECT `id` AS `id old`, `__order0` AS `__order0 old`, `__shown` AS `__shown old`, `__more` AS `__more old` FROM stored
), projected1 AS (
  SELECT `id old` AS `id_4`, `__order0 old` AS `order_5`, 1 AS `__w`, `__more old` AS `top more` FROM scan1
), scan2 AS (
  SELECT `id` AS `id_1`, `amount` AS `amount_3`, `__w` FROM orders_delta
), projected2 AS (
  SELECT `id_1` AS `id_4`, `amount_3` AS `order_5`, `__w` FROM scan2
), projected3 AS (
  SELECT `id_4`, `order_5`, `__w`, FALSE AS `top more` FROM projected2
), united1 AS (
  SELECT `id_4`, `order_5`, `__w`, `top more` FROM projected1
  UNION ALL SELECT `id_4`, `order_5`, `__w`, `top more` FROM projected3
), windowed1 AS (
  SELECT *, RANK() OVER (ORDER BY `order_5` DESC, `id_4` ASC NULLS LAST) AS `top rank` FROM united1
), windowed2 AS (
  SELECT *, SUM(`__w`) OVER (PARTITION BY `top rank`) AS `top net`, ROW_NUMBER() OVER (PARTITION BY `top rank` ORDER BY `__w` DESC) AS `top copy` FROM windowed1
), windowed3 AS (
  SELECT *, MAX(CASE WHEN `top more` THEN `top rank` END) OVER () AS `top bound` FROM windowed2
), projected4 AS (
  SELECT `id_4`, `order_5`, `top bound`, CASE WHEN `__w` > 0 AND `top copy` <= `top net` AND (`top bound` IS NULL OR `top rank` <= `top bound`) THEN 1 ELSE 0 END AS `top kept` FROM windowed3
), windowed4 AS (
  SELECT *, SUM(`top kept`) OVER () AS `top left` FROM projected4
), filtered1 AS (
  SELECT * FROM windowed4 WHERE `top kept` = 1 OR (NOT `top bound` IS NULL AND `top left` < 10)
), windowed5 AS (
  SELECT *, ROW_NUMBER() OVER (ORDER BY `order_5` DESC, `id_4` ASC NULLS LAST) AS `top place` FROM filtered1
), filtered2 AS (
  SELECT * FROM windowed5 WHERE `top place` <= 110
), projected5 AS (
  SELECT `id_4` AS `id`, `order_5` AS `__order0`, `top place` > 0 AND `top place` <= 10 AS `__shown`, CASE WHEN (`top place` = 110 OR `top place` = `top left`) AND (NOT `top bound` IS NULL OR `top left` > 110) THEN TRUE ELSE FALSE END AS `__more`, CASE WHEN NOT `top bound` IS NULL AND `top left` < 10 THEN 0 ELSE 1 END AS `__w` FROM filtered2
), projected6 AS (
  SELECT `id old` AS `id`, `__order0 old` AS `__order0`, `__shown old` AS `__shown`, `__more old` AS `__more` FROM scan1
), projected7 AS (
  SELECT `id`, `__order0`, `__shown`, `__more`, -1 AS `__w` FROM projected6
), united2 AS (
  SELECT `id`, `__order0`, `__shown`, `__more`, `__w` FROM projected5
  UNION ALL SELECT `id`, `__order0`, `__shown`, `__more`, `__w` FROM projected7
)
SELECT `id`, `__order0`, `__shown`, `__more`, `__w` FROM united2
