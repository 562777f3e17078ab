"""What every layer speaks about: types, schemas, delta rows and how they fold. Pure."""
