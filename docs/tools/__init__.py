"""How the pages become a site: `python -m docs.tools`, which is `make docs`.

1. `pages` collects the pages of the repository into `build/pages`, with links that hold there.
2. `sessions` runs the tutorials and the gallery, and puts what they print and draw into their pages.
3. `reference` writes the pages that follow from the code: modules, commands, the links between equations and code.
4. MkDocs makes `build/site` of them, by `mkdocs.yml`. `formulas` is the Markdown extension that turns LaTeX into
   MathML, and `docstrings` prepares docstrings for mkdocstrings.

Nothing of this is a plugin of MkDocs: what it reads is a folder of Markdown and two Python-Markdown extensions, which
is also what Zensical reads.
"""
