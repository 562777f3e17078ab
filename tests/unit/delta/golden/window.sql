-- SELECT id, RANK() OVER (PARTITION BY customer ORDER BY amount DESC) AS place FROM orders
-- stored as rows; changed: orders
WITH scan1 AS (
  SELECT `id` AS `id_1`, `customer` AS `customer_2`, `amount` AS `amount_3` FROM orders_new
), scan2 AS (
  SELECT `id` AS `id_1`, `customer` AS `customer_2`, `amount` AS `amount_3`, `__w` FROM orders_delta
), projected1 AS (
  SELECT `customer_2` AS `customer_2__k1` FROM scan2
), grouped1 AS (
  SELECT `customer_2__k1` FROM projected1 GROUP BY `customer_2__k1`
), joined1 AS (
  SELECT * FROM scan1 LEFT SEMI JOIN grouped1 ON `customer_2` IS NOT DISTINCT FROM `customer_2__k1`
), windowed1 AS (
  SELECT *, RANK() OVER (PARTITION BY `customer_2` ORDER BY `amount_3` DESC) AS `window_6` FROM joined1
), projected2 AS (
  SELECT `id_1`, `customer_2`, `amount_3`, `window_6`, 1 AS `__w` FROM windowed1
), scan3 AS (
  SELECT `id` AS `id_1`, `customer` AS `customer_2`, `amount` AS `amount_3` FROM orders_old
), joined2 AS (
  SELECT * FROM scan3 LEFT SEMI JOIN grouped1 ON `customer_2` IS NOT DISTINCT FROM `customer_2__k1`
), windowed2 AS (
  SELECT *, RANK() OVER (PARTITION BY `customer_2` ORDER BY `amount_3` DESC) AS `window_6` FROM joined2
), projected3 AS (
  SELECT `id_1`, `customer_2`, `amount_3`, `window_6`, -1 AS `__w` FROM windowed2
), united1 AS (
  SELECT `id_1`, `customer_2`, `amount_3`, `window_6`, `__w` FROM projected2
  UNION ALL SELECT `id_1`, `customer_2`, `amount_3`, `window_6`, `__w` FROM projected3
), projected4 AS (
  SELECT `id_1` AS `id_4`, `window_6` AS `place_5`, `__w` FROM united1
), projected5 AS (
  SELECT `id_4` AS `id`, `place_5` AS `place`, `__w` FROM projected4
)
SELECT `id`, `place`, `__w` FROM projected5
