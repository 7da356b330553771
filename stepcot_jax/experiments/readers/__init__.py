"""Reading forms for people, and how their answers compare with the models' (paper: Tables 5 and 10)."""
