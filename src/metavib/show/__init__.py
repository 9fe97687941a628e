"""What people look at: tables, figures, notes on the terminal."""
