"""The catalog: the SQL database that is the only commit point of a warehouse."""
