-- SELECT customer, SUM(amount) AS total FROM orders GROUP BY customer ORDER BY total DESC LIMIT 10
-- stored as top; changed: orders
WITH scan1 AS (
  SELECT `customer` AS `customer old`, `total` AS `total old`, `__shown` AS `__shown old`, `__more` AS `__more old` FROM stored
), projected1 AS (
  SELECT `customer old` AS `customer_5`, `total old` AS `total_6`, 1 AS `__w`, `__more old` AS `top more` FROM scan1
), scan2 AS (
  SELECT `customer` AS `customer_2`, `amount` AS `amount_3` FROM orders_new
), scan3 AS (
  SELECT `customer` AS `customer_2`, `amount` AS `amount_3`, `__w` FROM orders_delta
), projected2 AS (
  SELECT `customer_2` AS `customer_2__touched` FROM scan3
), grouped1 AS (
  SELECT `customer_2__touched` FROM projected2 GROUP BY `customer_2__touched`
), joined1 AS (
  SELECT /*+ BROADCAST(grouped1) */ * FROM scan2 LEFT SEMI JOIN grouped1 ON `customer_2` IS NOT DISTINCT FROM `customer_2__touched`
), grouped2 AS (
  SELECT `customer_2`, SUM(`amount_3`) AS `sum_4` FROM joined1 GROUP BY `customer_2`
), projected3 AS (
  SELECT `customer_2` AS `customer_5`, `sum_4` AS `total_6`, `sum_4` AS `order_7`, `customer_2` FROM grouped2
), projected4 AS (
  SELECT `customer_5`, `total_6` FROM projected3
), projected5 AS (
  SELECT `customer_5`, `total_6`, 1 AS `__w` FROM projected4
), scan4 AS (
  SELECT `customer` AS `customer old`, `total` AS `total old`, `__shown` AS `__shown old`, `__more` AS `__more old` FROM stored
), joined2 AS (
  SELECT * FROM scan4 LEFT SEMI JOIN grouped1 ON `customer old` IS NOT DISTINCT FROM `customer_2__touched`
), projected6 AS (
  SELECT `customer old` AS `customer_5`, `total old` AS `total_6` FROM joined2
), projected7 AS (
  SELECT `customer_5`, `total_6`, -1 AS `__w` FROM projected6
), united1 AS (
  SELECT `customer_5`, `total_6`, `__w` FROM projected5
  UNION ALL SELECT `customer_5`, `total_6`, `__w` FROM projected7
), projected8 AS (
  SELECT `customer_5`, `total_6`, `__w`, FALSE AS `top more` FROM united1
), united2 AS (
  SELECT `customer_5`, `total_6`, `__w`, `top more` FROM projected1
  UNION ALL SELECT `customer_5`, `total_6`, `__w`, `top more` FROM projected8
), windowed1 AS (
  SELECT *, RANK() OVER (ORDER BY `total_6` DESC, `customer_5` ASC NULLS LAST) AS `top rank` FROM united2
), windowed2 AS (
  SELECT *, SUM(`__w`) OVER (PARTITION BY `top rank`) AS `top net`, ROW_NUMBER() OVER (PARTITION BY `top rank` ORDER BY `__w` DESC) AS `top copy` FROM windowed1
), windowed3 AS (
  SELECT *, MAX(CASE WHEN `top more` THEN `top rank` END) OVER () AS `top bound` FROM windowed2
), projected9 AS (
  SELECT `customer_5`, `total_6`, `top bound`, CASE WHEN `__w` > 0 AND `top copy` <= `top net` AND (`top bound` IS NULL OR `top rank` <= `top bound`) THEN 1 ELSE 0 END AS `top kept` FROM windowed3
), windowed4 AS (
  SELECT *, SUM(`top kept`) OVER () AS `top left` FROM projected9
), filtered1 AS (
  SELECT * FROM windowed4 WHERE `top kept` = 1 OR (NOT `top bound` IS NULL AND `top left` < 10)
), windowed5 AS (
  SELECT *, ROW_NUMBER() OVER (ORDER BY `total_6` DESC, `customer_5` ASC NULLS LAST) AS `top place` FROM filtered1
), filtered2 AS (
  SELECT * FROM windowed5 WHERE `top place` <= 110
), projected10 AS (
  SELECT `customer_5` AS `customer`, `total_6` AS `total`, `top place` > 0 AND `top place` <= 10 AS `__shown`, CASE WHEN (`top place` = 110 OR `top place` = `top left`) AND (NOT `top bound` IS NULL OR `top left` > 110) THEN TRUE ELSE FALSE END AS `__more`, CASE WHEN NOT `top bound` IS NULL AND `top left` < 10 THEN 0 ELSE 1 END AS `__w` FROM filtered2
), projected11 AS (
  SELECT `customer old` AS `customer`, `total old` AS `total`, `__shown old` AS `__shown`, `__more old` AS `__more` FROM scan1
), projected12 AS (
  SELECT `customer`, `total`, `__shown`, `__more`, -1 AS `__w` FROM projected11
), united3 AS (
  SELECT `customer`, `total`, `__shown`, `__more`, `__w` FROM projected10
  UNION ALL SELECT `customer`, `total`, `__shown`, `__more`, `__w` FROM projected12
)
SELECT `customer`, `total`, `__shown`, `__more`, `__w` FROM united3
