"""Real tables of many small groups: metavib's defaults against what a practitioner would pick instead."""
