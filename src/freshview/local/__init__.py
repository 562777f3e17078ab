"""The embedded engine: delta plans over rows that are on the driver already, without a Spark job.

Law: for every plan that is accepted, the bag is Spark's to the bit, or an error is raised, and Spark runs the plan.
`expressions.PROVEN` lists what is accepted. The only place that loads DuckDB in a job.
"""
