# README's two commands on a bare Debian 12, as a plain user: the first when the image is built, the second when it runs.
#
#   docker build -t causal-linear-attention --build-arg TORCH_SPEC=torch==2.13.0+cpu \
#       --build-arg PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu .
#   docker run --rm causal-linear-attention
#
# The quickstart was run step by step with these packages in a fresh Debian root; the image itself has not been built.
# .ci/stock_machine runs both commands in such a root, without Docker.
FROM debian:12-slim
ARG PACKAGES="ca-certificates git g++ python3 python3-venv python3-dev"
RUN apt-get update && apt-get install --yes --no-install-recommends $PACKAGES && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --shell /bin/sh plain
USER plain
RUN mkdir /home/plain/project
WORKDIR /home/plain/project
COPY --chown=plain:plain . .
ARG TORCH_SPEC
ARG PIP_EXTRA_INDEX_URL
RUN ./scripts/quickstart.sh
CMD ["./scripts/test.sh"]
