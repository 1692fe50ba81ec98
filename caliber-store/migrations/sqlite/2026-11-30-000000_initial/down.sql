-- There is nothing before the first schema.
SELECT 1;
