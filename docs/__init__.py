"""The documentation: pages for people, and in `docs.tools` what makes the site of them."""
