-- SELECT c.name, o.amount FROM orders o JOIN customers c ON o.customer = c.id
-- stored as rows; changed: customers, orders
WITH scan1 AS (
  SELECT `customer` AS `customer_2`, `amount` AS `amount_3`, `__w` FROM orders_delta
), scan2 AS (
  SELECT `id` AS `id_4`, `name` AS `name_5` FROM customers_old
), joined1 AS (
  SELECT /*+ BROADCAST(scan1) */ * FROM scan1 INNER JOIN scan2 ON `customer_2` = `id_4`
), projected1 AS (
  SELECT `customer_2`, `amount_3`, `id_4`, `name_5`, `__w` FROM joined1
), scan3 AS (
  SELECT `id` AS `id_4`, `name` AS `name_5`, `__w` FROM customers_delta
), scan4 AS (
  SELECT `customer` AS `customer_2`, `amount` AS `amount_3` FROM orders_new
), joined2 AS (
  SELECT /*+ BROADCAST(scan3) */ * FROM scan3 INNER JOIN scan4 ON `customer_2` = `id_4`
), projected2 AS (
  SELECT `customer_2`, `amount_3`, `id_4`, `name_5`, `__w` FROM joined2
), united1 AS (
  SELECT `customer_2`, `amount_3`, `id_4`, `name_5`, `__w` FROM projected1
  UNION ALL SELECT `customer_2`, `amount_3`, `id_4`, `name_5`, `__w` FROM projected2
), projected3 AS (
  SELECT `name_5` AS `name_7`, `amount_3` AS `amount_8`, `__w` FROM united1
), projected4 AS (
  SELECT `name_7` AS `name`, `amount_8` AS `amount`, `__w` FROM projected3
)
SELECT `name`, `amount`, `__w` FROM projected4
