"""Everything a person looks at while a run goes on and after it: progress, tables, figures, the page of a search."""
