"""Storage: main tables in Delta Lake, segments, external tables; the only user of deltalake."""
