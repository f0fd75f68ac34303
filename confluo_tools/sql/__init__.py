"""SQL over logs and all other inputs, by DuckDB: the command confluo-sql.

command     the command line
statement   a statement as a tree: its tables, the columns and conditions that a table can take, our extra syntax
database    DuckDB with these tables, and nothing else that a statement could reach
tables      inputs as tables
result      the rows of a statement as records
"""
