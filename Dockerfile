# One image for every part: the same `shapewright` commands that run without containers (see docker-compose.yml).
FROM python:3.11-slim-bookworm

# Candidates and libraries are linked with gcc.
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/shapewright
COPY pyproject.toml requirements.lock README.md LICENSE NOTICE ./
COPY distribution distribution
COPY shapewright shapewright
COPY tuner tuner
COPY service service
COPY worker worker
COPY migrations migrations
RUN pip install --no-cache-dir -c requirements.lock '.[server]'

# Candidates are code that a search has made up: nothing here runs as root.
RUN useradd --create-home --uid 10001 shapewright \
 && install -d -o shapewright /var/lib/shapewright
USER shapewright
WORKDIR /home/shapewright
ENV SHAPEWRIGHT_DATA_DIR=/var/lib/shapewright \
    PYTHONUNBUFFERED=1 \
    RAY_USAGE_STATS_ENABLED=0

ENTRYPOINT ["shapewright"]
CMD ["--help"]
