"""How good labels are: measures, their uncertainty, and reports for a terminal, a program and a browser."""
