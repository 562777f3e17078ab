-- SELECT c.name, o.amount FROM customers c LEFT JOIN orders o ON o.customer = c.id
-- stored as rows; changed: orders
WITH scan1 AS (
  SELECT `id` AS `id_1`, `name` AS `name_2` FROM customers_new
), scan2 AS (
  SELECT `customer` AS `customer_5`, `amount` AS `amount_6`, `__w` FROM orders_delta
), projected1 AS (
  SELECT `customer_5`, `amount_6` FROM scan2
), joined1 AS (
  SELECT /*+ BROADCAST(projected1) */ * FROM scan1 LEFT SEMI JOIN projected1 ON `customer_5` = `id_1`
), scan3 AS (
  SELECT `customer` AS `customer_5`, `amount` AS `amount_6` FROM orders_new
), projected2 AS (
  SELECT `id_1`, `name_2` FROM joined1
), joined2 AS (
  SELECT /*+ BROADCAST(projected2) */ * FROM scan3 LEFT SEMI JOIN projected2 ON `customer_5` = `id_1`
), joined3 AS (
  SELECT /*+ BROADCAST(joined2) */ * FROM joined1 LEFT OUTER JOIN joined2 ON `customer_5` = `id_1`
), projected3 AS (
  SELECT `id_1`, `name_2`, `customer_5`, `amount_6`, 1 AS `__w` FROM joined3
), scan4 AS (
  SELECT `customer` AS `customer_5`, `amount` AS `amount_6` FROM orders_old
), projected4 AS (
  SELECT `id_1`, `name_2` FROM joined1
), joined4 AS (
  SELECT /*+ BROADCAST(projected4) */ * FROM scan4 LEFT SEMI JOIN projected4 ON `customer_5` = `id_1`
), joined5 AS (
  SELECT /*+ BROADCAST(joined4) */ * FROM joined1 LEFT OUTER JOIN joined4 ON `customer_5` = `id_1`
), projected5 AS (
  SELECT `id_1`, `name_2`, `customer_5`, `amount_6`, -1 AS `__w` FROM joined5
), united1 AS (
  SELECT `id_1`, `name_2`, `customer_5`, `amount_6`, `__w` FROM projected3
  UNION ALL SELECT `id_1`, `name_2`, `customer_5`, `amount_6`, `__w` FROM projected5
), projected6 AS (
  SELECT `name_2` AS `name_7`, `amount_6` AS `amount_8`, `__w` FROM united1
), projected7 AS (
  SELECT `name_7` AS `name`, `amount_8` AS `amount`, `__w` FROM projected6
)
SELECT `name`, `amount`, `__w` FROM projected7
