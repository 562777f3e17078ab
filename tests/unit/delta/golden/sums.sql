-- SELECT c.country, SUM(o.amount) AS amount, COUNT(*) AS n FROM orders o JOIN customers c ON o.customer = c.id GROUP BY c.country
-- stored as sums; changed: customers, orders
WITH scan1 AS (
  SELECT `customer` AS `customer_2`, `amount` AS `amount_3`, `__w` FROM orders_delta
), scan2 AS (
  SELECT `id` AS `id_4`, `country` AS `country_6` FROM customers_old
), joined1 AS (
  SELECT /*+ BROADCAST(scan1) */ * FROM scan1 INNER JOIN scan2 ON `customer_2` = `id_4`
), projected1 AS (
  SELECT `customer_2`, `amount_3`, `id_4`, `country_6`, `__w` FROM joined1
), scan3 AS (
  SELECT `id` AS `id_4`, `country` AS `country_6`, `__w` FROM customers_delta
), scan4 AS (
  SELECT `customer` AS `customer_2`, `amount` AS `amount_3` FROM orders_new
), joined2 AS (
  SELECT /*+ BROADCAST(scan3) */ * FROM scan3 INNER JOIN scan4 ON `customer_2` = `id_4`
), projected2 AS (
  SELECT `customer_2`, `amount_3`, `id_4`, `country_6`, `__w` FROM joined2
), united1 AS (
  SELECT `customer_2`, `amount_3`, `id_4`, `country_6`, `__w` FROM projected1
  UNION ALL SELECT `customer_2`, `amount_3`, `id_4`, `country_6`, `__w` FROM projected2
), grouped1 AS (
  SELECT `country_6`, SUM(`__w`) AS `__rows add`, SUM(CASE WHEN `amount_3` IS NULL THEN 0 ELSE `__w` END) AS `__known0 add`, SUM(CASE WHEN `__w` > 0 THEN CAST(`amount_3` AS DECIMAL(20, 0)) ELSE -CAST(`amount_3` AS DECIMAL(20, 0)) END) AS `__sum0 add` FROM united1 GROUP BY `country_6`
), scan5 AS (
  SELECT `country` AS `country old`, `amount` AS `amount old`, `n` AS `n old`, `__key0` AS `__key0 old`, `__rows` AS `__rows old`, `__known0` AS `__known0 old`, `__sum0` AS `__sum0 old` FROM stored
), joined3 AS (
  SELECT * FROM grouped1 LEFT OUTER JOIN scan5 ON `country_6` IS NOT DISTINCT FROM `__key0 old`
), generated1 AS (
  SELECT * FROM joined3 LATERAL VIEW EXPLODE(ARRAY(1, -1)) g AS `__w`
), filtered1 AS (
  SELECT * FROM generated1 WHERE `__w` > 0 OR NOT `__rows old` IS NULL
), projected3 AS (
  SELECT `country_6`, CASE WHEN `__w` > 0 THEN CAST(CASE WHEN `__rows old` IS NULL THEN `__rows add` WHEN `__rows add` IS NULL THEN `__rows old` ELSE `__rows old` + `__rows add` END AS BIGINT) ELSE `__rows old` END AS `__rows`, CASE WHEN `__w` > 0 THEN CAST(CASE WHEN `__known0 old` IS NULL THEN `__known0 add` WHEN `__known0 add` IS NULL THEN `__known0 old` ELSE `__known0 old` + `__known0 add` END AS BIGINT) ELSE `__known0 old` END AS `__known0`, CASE WHEN `__w` > 0 THEN CASE WHEN CASE WHEN `__known0 old` IS NULL THEN `__known0 add` WHEN `__known0 add` IS NULL THEN `__known0 old` ELSE `__known0 old` + `__known0 add` END = 0 THEN NULL ELSE CAST(CASE WHEN `__sum0 old` IS NULL THEN `__sum0 add` WHEN `__sum0 add` IS NULL THEN `__sum0 old` ELSE `__sum0 old` + `__sum0 add` END AS BIGINT) END ELSE `__sum0 old` END AS `__sum0`, `country old`, `amount old`, `n old`, `__w` FROM filtered1
), filtered2 AS (
  SELECT * FROM projected3 WHERE `__rows` > 0
), projected4 AS (
  SELECT `country_6`, `__sum0` AS `sum_7`, `__rows` AS `count_8`, `__rows`, `__known0`, `__sum0`, `country old`, `amount old`, `n old`, `__w` FROM filtered2
), projected5 AS (
  SELECT `country_6` AS `country_9`, `sum_7` AS `amount_10`, `count_8` AS `n_11`, `country_6`, `__rows`, `__known0`, `__sum0`, `country old`, `amount old`, `n old`, `__w` FROM projected4
), projected6 AS (
  SELECT `country_9` AS `country`, `amount_10` AS `amount`, `n_11` AS `n`, `country_6` AS `__key0`, `__rows`, `__known0`, `__sum0`, `country old`, `amount old`, `n old`, `__w` FROM projected5
), projected7 AS (
  SELECT CASE WHEN `__w` > 0 THEN `country` ELSE `country old` END AS `country`, CASE WHEN `__w` > 0 THEN `amount` ELSE `amount old` END AS `amount`, CASE WHEN `__w` > 0 THEN `n` ELSE `n old` END AS `n`, `__key0`, `__rows`, `__known0`, `__sum0`, `__w` FROM projected6
)
SELECT `country`, `amount`, `n`, `__key0`, `__rows`, `__known0`, `__sum0`, `__w` FROM projected7
