"""Views of memory in notebooks and consoles: tables, cards, diffs, DataFrames, plots and magics.

Objects of other packages call this package through `tomldiary.runtime.views`, which imports it when the first object
is shown. A maker turns an object into a `Sheet`, and a renderer turns the sheet into HTML or text. Begin reading in
`show`. May import every layer below; pandas, matplotlib, tqdm and IPython are optional.
"""
