"""The catalog: the SQL database that defines what a warehouse holds at each CSN.

Law: it is the only commit point. A change is visible once its database transaction has committed, and not before;
no CSN appears after a higher one. Only this room speaks to the database.
"""
