-- What is about code tools has no place in the schema before; an older version starts from a backup.
SELECT 1;
