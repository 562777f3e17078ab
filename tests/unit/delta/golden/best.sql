-- SELECT customer, MAX(amount) AS best FROM orders GROUP BY customer HAVING COUNT(*) > 1
-- stored as sums; changed: orders
WITH scan1 AS (
  SELECT `customer` AS `customer_2`, `amount` AS `amount_3`, `__w` FROM orders_delta
), grouped1 AS (
  SELECT `customer_2`, SUM(`__w`) AS `__rows add`, MAX(CASE WHEN `__w` > 0 THEN `amount_3` END) AS `__max0 add`, MAX(CASE WHEN `__w` < 0 THEN `amount_3` END) AS `__max0__gone` FROM scan1 GROUP BY `customer_2`
), scan2 AS (
  SELECT `customer` AS `customer old`, `best` AS `best old`, `__key0` AS `__key0 old`, `__rows` AS `__rows old`, `__max0` AS `__max0 old`, `__shown` AS `__shown old` FROM stored
), joined1 AS (
  SELECT * FROM grouped1 LEFT OUTER JOIN scan2 ON `customer_2` IS NOT DISTINCT FROM `__key0 old`
), projected1 AS (
  SELECT `customer_2`, CAST(CASE WHEN `__rows old` IS NULL THEN `__rows add` WHEN `__rows add` IS NULL THEN `__rows old` ELSE `__rows old` + `__rows add` END AS BIGINT) AS `__rows`, CASE WHEN `__max0 add` IS NULL OR `__max0 old` >= `__max0 add` THEN `__max0 old` ELSE `__max0 add` END AS `__max0`, CASE WHEN NOT `__max0__gone` IS NULL AND (`__max0 old` IS NULL OR `__max0__gone` >= `__max0 old`) THEN TRUE ELSE FALSE END AS `__rows__doubt` FROM joined1
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
  SELECT `customer` AS `customer old`, `best` AS `best old`, `__key0` AS `__key0 old`, `__rows` AS `__rows old`, `__max0` AS `__max0 old`, `__shown` AS `__shown old` FROM stored
), projected9 AS (
  SELECT `customer_2` AS `customer_2__touched` FROM grouped1
), joined3 AS (
  SELECT * FROM scan4 LEFT SEMI JOIN projected9 ON `__key0 old` IS NOT DISTINCT FROM `customer_2__touched`
), projected10 AS (
  SELECT `customer old` AS `customer`, `best old` AS `best`, `__key0 old` AS `__key0`, `__rows old` AS `__rows`, `__max0 old` AS `__max0`, `__shown old` AS `__shown` FROM joined3
), projected11 AS (
  SELECT `customer`, `best`, `__key0`, `__rows`, `__max0`, `__shown`, -1 AS `__w` FROM projected10
), united2 AS (
  SELECT `customer`, `best`, `__key0`, `__rows`, `__max0`, `__shown`, `__w` FROM projected8
  UNION ALL SELECT `customer`, `best`, `__key0`, `__rows`, `__max0`, `__shown`, `__w` FROM projected11
)
SELECT `customer`, `best`, `__key0`, `__rows`, `__max0`, `__shown`, `__w` FROM united2
