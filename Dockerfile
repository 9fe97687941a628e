# The service in a container; docs/serve.md says how to build and run it.
FROM python:3.12-slim

# PyTorch for the processor alone, which is a tenth of the size of the one for GPUs.
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu "torch>=2.11,<2.14"

COPY pyproject.toml README.md LICENSE /source/
COPY src /source/src
RUN pip install --no-cache-dir "/source[serve]"

# Tasks are kept in /data, which belongs to a user without rights.
RUN useradd --uid 10001 --create-home metavib && install -d -o metavib /data
USER metavib
WORKDIR /data
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["metavib", "serve", "--host", "0.0.0.0", "--store", "sqlite:////data/tasks.db"]
# The bundled model of characters, unless told otherwise; name folders of your own runs to serve these.
CMD ["characters"]
