-- SELECT customer, MAX(amount) AS best FROM orders GROUP BY customer HAVING COUNT(*) > 1
-- stored as sums; changed: orders
WITH scan1 AS (
  SELECT `customer` AS `customer_2`, `amount` AS `amount_3`, `__w` FROM orders_delta
), grouped1 AS (
  SELECT `customer_2`, SUM(`__w`) AS `__rows__add`, MAX(CASE WHEN `__w` > 0 THEN `amount_3` END) AS `__max0__add`, MAX(CASE WHEN `__w` < 0 THEN `amount_3` END) AS `__max0__gone` FROM scan1 GROUP BY `customer_2`
), scan2 AS (
  SELECT `customer` AS `customer__old`, `best` AS `best__old`, `__key0` AS `__key0__old`, `__rows` AS `__rows__old`, `__max0` AS `__max0__old`, `__shown` AS `__shown__old` FROM stored
), joined1 AS (
  SELECT * FROM grouped1 LEFT OUTER JOIN scan2 ON `customer_2` IS NOT DISTINCT FROM `__key0__old`
), projected1 AS (
  SELECT `customer_2`, CAST(CASE WHEN `__rows__old` IS NULL THEN `__rows__add` WHEN `__rows__add` IS NULL THEN `__rows__old` ELSE `__rows__old` + `__rows__add` END AS BIGINT) AS `__rows`, CASE WHEN `__max0__add` IS NULL OR `__max0__old` >= `__max0__add` THEN `__max0__old` ELSE `__max0__add` END AS `__max0`, CASE WHEN NOT `__max0__gone` IS NULL AND (`__max0__old` IS NULL OR `__max0__gone` >= `__max0__old`) THEN TRUE ELSE FALSE END AS `__rows__doubt` FROM joined1
), filtered1 AS (
  SELECT * FROM projected1 WHERE `__rows` > 0
), filtered2 AS (
  SELECT * FROM filtered1 WHERE NOT `__rows__doubt`
), projected2 AS (
  SELECT `customer_2`, `__rows`, `__max0` FROM filtered2
), scan3 AS (
  SELECT `customer` AS `customer_2`, `amount` AS `amount_3` FROM orders_new
), filtered3 AS (
  SELECT * FROM filtered1 WHERE `__rows__doubt`
), projected3 AS (
  SELECT `customer_2` AS `customer_2__doubt` FROM filtered3
), joined2 AS (
  SELECT /*+ BROADCAST(projected3) */ * FROM scan3 LEFT SEMI JOIN projected3 ON `customer_2` IS NOT DISTINCT FROM `customer_2__doubt`
), grouped2 AS (
  SELECT `customer_2`, COUNT(*) AS `__rows`, MAX(`amount_3`) AS `__max0` FROM joined2 GROUP BY `customer_2`
), united1 AS (
  SELECT `customer_2`, `__rows`, `__max0` FROM projected2
  UNION ALL SELECT `customer_2`, `__rows`, `__max0` FROM grouped2
), projected4 AS (
  SELECT `customer_2`, `__max0` AS `max_4`, `__rows` AS `count_5`, `__rows`, `__max0` FROM united1
), projected5 AS (
  SELECT `customer_2`, `max_4`, `count_5`, `__rows`, `__max0`, CASE WHEN `count_5` > 1 THEN TRUE ELSE FALSE END AS `__shown` FROM projected4
), projected6 AS (
  SELECT `customer_2` AS `customer_6`, `max_4` AS `best_7`, `customer_2`, `__rows`, `__max0`, `__shown` FROM projected5
), projected7 AS (
  SELECT `customer_6` AS `customer`, `best_7` AS `best`, `customer_2` AS `__key0`, `__rows`, `__max0`, `__shown` FROM projected6
), projected8 AS (
  SELECT `customer`, `best`, `__key0`, `__rows`, `__max0`, `__shown`, 1 AS `__w` FROM projected7
), scan4 AS (
  SELECT `customer` AS `customer__old`, `best` AS `best__old`, `__key0` AS `__key0__old`, `__rows` AS `__rows__old`, `__max0` AS `__max0__old`, `__shown` AS `__shown__old` FROM stored
), projected9 AS (
  SELECT `customer_2` AS `customer_2__touched` FROM grouped1
), joined3 AS (
  SELECT * FROM scan4 LEFT SEMI JOIN projected9 ON `__key0__old` IS NOT DISTINCT FROM `customer_2__touched`
), projected10 AS (
  SELECT `customer__old` AS `customer`, `best__old` AS `best`, `__key0__old` AS `__key0`, `__rows__old` AS `__rows`, `__max0__old` AS `__max0`, `__shown__old` AS `__shown` FROM joined3
), projected11 AS (
  SELECT `customer`, `best`, `__key0`, `__rows`, `__max0`, `__shown`, -1 AS `__w` FROM projected10
), united2 AS (
  SELECT `customer`, `best`, `__key0`, `__rows`, `__max0`, `__shown`, `__w` FROM projected8
  UNION ALL SELECT `customer`, `best`, `__key0`, `__rows`, `__max0`, `__shown`, `__w` FROM projected11
)
SELECT `customer`, `best`, `__key0`, `__rows`, `__max0`, `__shown`, `__w` FROM united2
