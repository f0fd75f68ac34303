"""Records into tables of ClickHouse, over its HTTP interface."""
