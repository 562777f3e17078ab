-- SELECT name FROM customers WHERE id NOT IN (SELECT customer FROM orders)
-- stored as rows; changed: orders
WITH scan1 AS (
  SELECT `id` AS `id_1`, `name` AS `name_2` FROM customers_new
), scan2 AS (
  SELECT `customer` AS `customer_5`, `__w` FROM orders_delta
), projected1 AS (
  SELECT `customer_5` AS `customer_7`, `__w` FROM scan2
), projected2 AS (
  SELECT `customer_7` FROM projected1
), joined1 AS (
  SELECT /*+ BROADCAST(projected2) */ * FROM scan1 LEFT SEMI JOIN projected2 ON COALESCE(`id_1` = `customer_7`, TRUE)
), scan3 AS (
  SELECT `customer` AS `customer_5` FROM orders_new
), projected3 AS (
  SELECT `customer_5` AS `customer_7` FROM scan3
), joined2 AS (
  SELECT * FROM joined1 LEFT ANTI JOIN projected3 ON COALESCE(`id_1` = `customer_7`, TRUE)
), projected4 AS (
  SELECT `id_1`, `name_2`, 1 AS `__w` FROM joined2
), scan4 AS (
  SELECT `customer` AS `customer_5` FROM orders_old
), projected5 AS (
  SELECT `customer_5` AS `customer_7` FROM scan4
), joined3 AS (
  SELECT * FROM joined1 LEFT ANTI JOIN projected5 ON COALESCE(`id_1` = `customer_7`, TRUE)
), projected6 AS (
  SELECT `id_1`, `name_2`, -1 AS `__w` FROM joined3
), united1 AS (
  SELECT `id_1`, `name_2`, `__w` FROM projected4
  UNION ALL SELECT `id_1`, `name_2`, `__w` FROM projected6
), projected7 AS (
  SELECT `name_2` AS `name_8`, `__w` FROM united1
), projected8 AS (
  SELECT `name_8` AS `name`, `__w` FROM projected7
)
SELECT `name`, `__w` FROM projected8
