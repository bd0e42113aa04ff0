"""Programming problems in several languages, with solutions of every sort, and what each of them must get."""
