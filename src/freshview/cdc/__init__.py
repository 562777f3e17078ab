"""Change capture: changes that others make, as they can be had, and what can be kept from them.

Three parts. `notice` makes commits of new versions of external Delta tables; law: a change and its origin are recorded
in one catalog transaction, exactly once, whatever process dies. Sources (`source`: event files, dumps, PostgreSQL) turn
what a technique captures into six sets of rows (`model`) and a position; law: what lies between two positions is
delivered by the poll between them, whole, and the source forgets nothing before it is confirmed. Rules (`dimension`,
`rules`) carry six sets through a view over tables that the warehouse does not hold; law: stored rows with the result
applied equal the view recomputed, or the view is refused.
"""
