{{/*
What the collector does, as a map: Ray's log files in, Loki (by OTLP) and Elasticsearch out. Its queues are bounded and block
when full, so that a store that is down stops the reading, not the pod. Offsets are kept in the pod: a restarted collector
goes on where it was, and start_at: beginning loses nothing and sends nothing twice.
*/}}

{{/* Usage: $ → YAML map */}}
{{- define "llm-ray.collectorConfig" -}}
{{- $collector := .Values.monitoring.logs.collector -}}
extensions:
  health_check:
    endpoint: 0.0.0.0:{{ int $collector.healthPort }}
  file_storage:
    directory: /var/lib/otelcol
receivers:
  filelog/serve:
    include: [/tmp/ray/session_latest/logs/serve/*.log]
    {{- include "llm-ray.collectorReader" . | nindent 4 }}
  filelog/ray:
    include: [/tmp/ray/session_latest/logs/*.log, /tmp/ray/session_latest/logs/*.out, /tmp/ray/session_latest/logs/*.err]
    exclude: [/tmp/ray/session_latest/logs/python-core-*]
    {{- include "llm-ray.collectorReader" . | nindent 4 }}
processors:
  memory_limiter:
    check_interval: 1s
    limit_percentage: 80
    spike_limit_percentage: 20
  resource:
    attributes:
      - {action: upsert, key: service.name, value: {{ include "llm-ray.fullname" . | quote }}}
      {{- range $key, $variable := dict "k8s.namespace.name" "K8S_NAMESPACE_NAME" "k8s.node.name" "K8S_NODE_NAME" "k8s.pod.name" "K8S_POD_NAME" "llm_ray.group" "LLM_RAY_GROUP" "ray.cluster" "LLM_RAY_CLUSTER" }}
      - {action: upsert, key: {{ $key }}, value: "${env:{{ $variable }}}"}
      {{- end }}
exporters:
  {{- include "llm-ray.collectorExporters" . | trim | nindent 2 }}
service:
  extensions: [health_check, file_storage]
  telemetry:
    logs: {level: info, encoding: json}
    metrics: {level: none}
  pipelines:
    logs:
      receivers: [filelog/serve, filelog/ray]
      processors: [memory_limiter, resource]
      exporters: {{ include "llm-ray.collectorExporters" . | fromYaml | keys | sortAlpha | toJson }}
{{- end -}}

{{/*
How a log file is read. The marks by which Ray's own log monitor tells jobs and actors apart are left out. JSON lines become
attributes, with their own time (replicas in ns, the rest to the ms) and level (C++ writes its first letter). Usage: $ → YAML map
*/}}
{{- define "llm-ray.collectorReader" -}}
start_at: beginning
storage: file_storage
poll_interval: 1s
retry_on_failure: {enabled: true, max_elapsed_time: 0s}
operators:
  - type: filter
    expr: body matches "^:(job_id|actor_name|task_name):"
{{- if eq .Values.monitoring.logs.format "json" }}
  - type: regex_parser
    regex: '^(?P<asctime>[0-9-]+ [0-9:,]+)\t(?P<levelname>[A-Z]+) '
    on_error: send_quiet
  - type: json_parser
    if: body matches "^{.*}$"
    parse_ints: true
    on_error: send_quiet
  - type: time_parser
    if: attributes["timestamp_ns"] != nil
    parse_from: attributes["timestamp_ns"]
    layout_type: epoch
    layout: ns
    on_error: send_quiet
  - type: time_parser
    if: attributes["timestamp_ns"] == nil and attributes["asctime"] != nil
    parse_from: attributes["asctime"]
    layout: "%Y-%m-%d %H:%M:%S,%L"
    on_error: send_quiet
  - type: severity_parser
    if: attributes["levelname"] != nil
    parse_from: attributes["levelname"]
    mapping: {debug: D, info: I, warn: W, error: E, fatal: [F, CRITICAL]}
    on_error: send_quiet
  - type: move
    if: attributes["message"] != nil
    from: attributes["message"]
    to: body
{{- end }}
{{- end -}}

{{/* Usage: $ → YAML map */}}
{{- define "llm-ray.collectorExporters" -}}
{{- $collector := .Values.monitoring.logs.collector -}}
{{- with $collector.lokiEndpoint }}
otlphttp/loki:
  endpoint: {{ . | quote }}
  {{- if $collector.existingSecret }}
  headers:
    X-Scope-OrgID: ${env:LOKI_TENANT:-}
  {{- end }}
  retry_on_failure: {enabled: true, max_elapsed_time: 0s}
  {{- include "llm-ray.collectorQueue" . | nindent 2 }}
{{- end }}
{{- with $collector.elasticsearchEndpoint }}
elasticsearch:
  endpoints: [{{ . | quote }}]
  {{- if $collector.existingSecret }}
  user: ${env:ELASTICSEARCH_USER:-}
  password: ${env:ELASTICSEARCH_PASSWORD:-}
  {{- end }}
  retry: {enabled: true, max_retries: 30, max_interval: 30s, retry_on_status: [429, 502, 503, 504]}
  {{- include "llm-ray.collectorQueue" . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* An exporter's queue, in bytes: 8 MB at most, sent in parts of up to 1 MB. Usage: $ → YAML map */}}
{{- define "llm-ray.collectorQueue" -}}
sending_queue:
  sizer: bytes
  queue_size: 8000000
  num_consumers: 2
  block_on_overflow: true
  batch: {flush_timeout: 1s, sizer: bytes, min_size: 500000, max_size: 1000000}
{{- end -}}
