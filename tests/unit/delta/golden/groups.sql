-- SELECT customer, COUNT(DISTINCT amount) AS n FROM orders GROUP BY customer HAVING COUNT(*) > 1
-- stored as groups; changed: orders
WITH scan1 AS (
  SELECT `customer` AS `customer_2`, `amount` AS `amount_3` FROM orders_new
), scan2 AS (
  SELECT `customer` AS `customer_2`, `amount` AS `amount_3`, `__w` FROM orders_delta
), projected1 AS (
  SELECT `customer_2` AS `customer_2__touched` FROM scan2
), grouped1 AS (
  SELECT `customer_2__touched` FROM projected1 GROUP BY `customer_2__touched`
), joined1 AS (
  SELECT /*+ BROADCAST(grouped1) */ * FROM scan1 LEFT SEMI JOIN grouped1 ON `customer_2` IS NOT DISTINCT FROM `customer_2__touched`
), grouped2 AS (
  SELECT `customer_2`, COUNT(DISTINCT `amount_3`) AS `count_4`, COUNT(*) AS `count_5` FROM joined1 GROUP BY `customer_2`
), filtered1 AS (
  SELECT * FROM grouped2 WHERE `count_5` > 1
), projected2 AS (
  SELECT `customer_2` AS `customer_6`, `count_4` AS `n_7`, `customer_2` FROM filtered1
), projected3 AS (
  SELECT `customer_6` AS `customer`, `n_7` AS `n`, `customer_2` AS `__key0` FROM projected2
), projected4 AS (
  SELECT `customer`, `n`, `__key0`, 1 AS `__w` FROM projected3
), scan3 AS (
  SELECT `customer` AS `customer old`, `n` AS `n old`, `__key0` AS `__key0 old` FROM stored
), joined2 AS (
  SELECT * FROM scan3 LEFT SEMI JOIN grouped1 ON `__key0 old` IS NOT DISTINCT FROM `customer_2__touched`
), projected5 AS (
  SELECT `customer old` AS `customer`, `n old` AS `n`, `__key0 old` AS `__key0` FROM joined2
), projected6 AS (
  SELECT `customer`, `n`, `__key0`, -1 AS `__w` FROM projected5
), united1 AS (
  SELECT `customer`, `n`, `__key0`, `__w` FROM projected4
  UNION ALL SELECT `customer`, `n`, `__key0`, `__w` FROM projected6
)
SELECT `customer`, `n`, `__key0`, `__w` FROM united1
