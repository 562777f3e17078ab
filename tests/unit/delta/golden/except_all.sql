-- SELECT id FROM customers EXCEPT ALL SELECT customer FROM orders
-- stored as rows; changed: customers, orders
WITH scan1 AS (
  SELECT `id` AS `id_1` FROM customers_new
), projected1 AS (
  SELECT `id_1` AS `id_4` FROM scan1
), scan2 AS (
  SELECT `id` AS `id_1`, `__w` FROM customers_delta
), projected2 AS (
  SELECT `id_1` AS `id_4`, `__w` FROM scan2
), projected3 AS (
  SELECT `id_4` AS `id_4__k1` FROM projected2
), scan3 AS (
  SELECT `customer` AS `customer_6`, `__w` FROM orders_delta
), projected4 AS (
  SELECT `customer_6` AS `customer_8`, `__w` FROM scan3
), projected5 AS (
  SELECT `customer_8` AS `id_4__k1` FROM projected4
), united1 AS (
  SELECT `id_4__k1` FROM projected3
  UNION ALL SELECT `id_4__k1` FROM projected5
), grouped1 AS (
  SELECT `id_4__k1` FROM united1 GROUP BY `id_4__k1`
), joined1 AS (
  SELECT * FROM projected1 LEFT SEMI JOIN grouped1 ON `id_4` IS NOT DISTINCT FROM `id_4__k1`
), scan4 AS (
  SELECT `customer` AS `customer_6` FROM orders_new
), projected6 AS (
  SELECT `customer_6` AS `customer_8` FROM scan4
), joined2 AS (
  SELECT * FROM projected6 LEFT SEMI JOIN grouped1 ON `customer_8` IS NOT DISTINCT FROM `id_4__k1`
), compared1 AS (
  SELECT `id_4` AS `id_9` FROM joined1
  EXCEPT ALL SELECT `customer_8` AS `id_9` FROM joined2
), projected7 AS (
  SELECT `id_9`, 1 AS `__w` FROM compared1
), scan5 AS (
  SELECT `id` AS `id_1` FROM customers_old
), projected8 AS (
  SELECT `id_1` AS `id_4` FROM scan5
), joined3 AS (
  SELECT * FROM projected8 LEFT SEMI JOIN grouped1 ON `id_4` IS NOT DISTINCT FROM `id_4__k1`
), scan6 AS (
  SELECT `customer` AS `customer_6` FROM orders_old
), projected9 AS (
  SELECT `customer_6` AS `customer_8` FROM scan6
), joined4 AS (
  SELECT * FROM projected9 LEFT SEMI JOIN grouped1 ON `customer_8` IS NOT DISTINCT FROM `id_4__k1`
), compared2 AS (
  SELECT `id_4` AS `id_9` FROM joined3
  EXCEPT ALL SELECT `customer_8` AS `id_9` FROM joined4
), projected10 AS (
  SELECT `id_9`, -1 AS `__w` FROM compared2
), united2 AS (
  SELECT `id_9`, `__w` FROM projected7
  UNION ALL SELECT `id_9`, `__w` FROM projected10
), projected11 AS (
  SELECT `id_9` AS `id`, `__w` FROM united2
)
SELECT `id`, `__w` FROM projected11
