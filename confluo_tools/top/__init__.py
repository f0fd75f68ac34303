"""confluo-top: the groups of records with the largest rates, again and again."""
