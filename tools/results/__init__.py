"""The tables and figures of the pages that come from the records in `results/`: `make results` rebuilds them all.

=========  =====================================================================================
`records`  reads the records of a study, once
`tables`   a function for each table
`claims`   the claims of the paper, each with what the records say about it
`against`  the table and the figure of `benchmarks.against`
`figures`  figures as PNG files, which contain the numbers that they show
`pages`    finds tables between markers in pages, and compares them with what the records give
=========  =====================================================================================
"""
