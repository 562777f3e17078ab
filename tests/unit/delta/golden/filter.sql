-- SELECT id, amount * 2 AS twice FROM orders WHERE amount > 10 AND NOT (customer = 1 OR customer IS NULL)
-- stored as rows; changed: orders
WITH scan1 AS (
  SELECT `id` AS `id_1`, `customer` AS `customer_2`, `amount` AS `amount_3`, `__w` FROM orders_delta
), filtered1 AS (
  SELECT * FROM scan1 WHERE `amount_3` > 10
), filtered2 AS (
  SELECT * FROM filtered1 WHERE NOT (`customer_2` = 1 OR `customer_2` IS NULL)
), projected1 AS (
  SELECT `id_1` AS `id_4`, `amount_3` * 2 AS `twice_5`, `__w` FROM filtered2
), projected2 AS (
  SELECT `id_4` AS `id`, `twice_5` AS `twice`, `__w` FROM projected1
)
SELECT `id`, `twice`, `__w` FROM projected2
