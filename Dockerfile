# The image of streamcrawl: the command in a virtual environment on a slim Python, no compiler, no pip, no shell scripts.
#
#   docker build -t streamcrawl:0.1.0 .
#
# Where no package index is reached, or to install what was built and tested elsewhere, put wheels beside it first, made
# by the Python of the base image; then nothing is downloaded:
#
#   pip wheel -w wheels -c requirements.lock . && docker build --build-arg BASE=my-base:1 -t streamcrawl:0.1.0 .
#
# BASE is any image with python3 of 3.11 or newer, its venv module, and useradd. EXTRAS are those of pyproject.toml that a
# crawl needs, with commas between: `--build-arg EXTRAS=postgres,otel`; wheels have to be made of them, too.
ARG BASE=python:3.13.3-slim-bookworm

FROM ${BASE} AS built
ARG EXTRAS=
COPY . /src
# The versions are those that were tested; without the lock file a rebuild would be another program.
RUN cd /src \
 && python3 -m venv /pip \
 && python3 -m venv --without-pip /opt/streamcrawl \
 && if ls wheels/*.whl >/dev/null 2>&1; then index=--no-index; else index=; fi \
 && if [ -z "$index" ]; then \
      /pip/bin/pip wheel --no-cache-dir -q -w wheels -c requirements.lock -c requirements-dev.lock ".${EXTRAS:+[$EXTRAS]}"; fi \
 && /pip/bin/pip --python /opt/streamcrawl/bin/python3 install --no-cache-dir -q --no-index --find-links wheels \
      "streamcrawl${EXTRAS:+[$EXTRAS]}"

FROM ${BASE}
LABEL org.opencontainers.image.title="streamcrawl" \
      org.opencontainers.image.description="A distributed crawler on Redis Streams" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --system --uid 10001 --user-group --no-create-home --home-dir /data streamcrawl \
 && install -d -o streamcrawl -g streamcrawl /data
COPY --from=built /opt/streamcrawl /opt/streamcrawl
ENV PATH=/opt/streamcrawl/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# By number, or Kubernetes could not tell that it is not root.
USER 10001:10001
WORKDIR /data
# SIGTERM drains: what is under way is ended within --grace (30 s), the rest handed back. Give a stop more than that.
STOPSIGNAL SIGTERM
ENTRYPOINT ["streamcrawl"]
CMD ["--help"]
