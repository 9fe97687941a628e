"""The paper's laboratory: its tables and figures, our numbers beside the published ones. It is not part of the package.

The walk of `python -m reproduction table-2`, each step in a file of its own: a study lists its runs (`study`,
`studies`, `runs`); what is missing of them is run (`make`, `queue`) and recorded, a line for each run (`store`,
`records/`); records become tables, curves and figures (`tables`, `curves`, `figures`), compared (`compare`) with the
paper's numbers (`published`); and all of these become RESULTS.md (`report`).
"""
