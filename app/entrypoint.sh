#!/bin/sh
# What the container does is chosen by RAY_ROLE; arguments are passed on to the command it runs.
#   head    a Ray head; no work is placed on it unless RAY_NUM_CPUS says so
#   worker  a Ray worker that joins $RAY_HEAD_SERVICE (host name of the head, port 6379)
#   serve   the app with a Ray of its own in this container: llm-ray serve ...
# Without RAY_ROLE the arguments are the command. KubeRay brings its own command and never comes here.
set -eu

case "${RAY_ROLE:-}" in
head)
  exec ray start --head --block --port=6379 --dashboard-host=0.0.0.0 --num-cpus="${RAY_NUM_CPUS:-0}" "$@"
  ;;
worker)
  if [ -z "${RAY_HEAD_SERVICE:-}" ]; then
    echo "entrypoint: RAY_ROLE=worker needs RAY_HEAD_SERVICE: set it to the head's host name" >&2
    exit 2
  fi
  exec ray start --address="$RAY_HEAD_SERVICE:6379" --block ${RAY_NUM_CPUS:+--num-cpus="$RAY_NUM_CPUS"} "$@"
  ;;
serve)
  exec llm-ray serve --host 0.0.0.0 "$@"
  ;;
"")
  if [ $# -eq 0 ]; then
    echo "entrypoint: set RAY_ROLE to head, worker or serve, or give a command" >&2
    exit 2
  fi
  exec "$@"
  ;;
*)
  echo "entrypoint: RAY_ROLE ($RAY_ROLE) must be head, worker or serve" >&2
  exit 2
  ;;
esac
