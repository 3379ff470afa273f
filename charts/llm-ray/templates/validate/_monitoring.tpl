{{/* Metrics, traces and logs. Usage: $ */}}
{{- define "llm-ray.validate.monitoring" -}}
{{- $monitoring := .Values.monitoring -}}
{{- range $monitor := list "podMonitor" "serviceMonitor" -}}
{{- with index $monitoring $monitor -}}
{{- if gt (include "llm-ray.seconds" .scrapeTimeout | float64) (include "llm-ray.seconds" .interval | float64) -}}
{{- include "llm-ray.refuse" (list (printf "monitoring.%s.scrapeTimeout" $monitor) .scrapeTimeout (printf "be at most monitoring.%s.interval (%s), or Prometheus refuses its configuration" $monitor .interval) "lower it, or raise the interval") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $monitoring.tracing.enabled (not $monitoring.tracing.endpoint) -}}
{{- include "llm-ray.refuse" (list "monitoring.tracing.endpoint" "" "say where traces go while monitoring.tracing.enabled" "set it, e.g. to http://otel-collector.monitoring.svc:4318") -}}
{{- end -}}
{{- with $monitoring.logs.collector -}}
{{- if and .enabled (not .lokiEndpoint) (not .elasticsearchEndpoint) -}}
{{- include "llm-ray.refuse" (list "monitoring.logs.collector.lokiEndpoint" "" "say where logs go while monitoring.logs.collector.enabled" "set it, or elasticsearchEndpoint") -}}
{{- end -}}
{{- end -}}
{{- $alerts := list -}}
{{- range (.Files.Get "files/alerts.yaml" | fromYaml).groups -}}
{{- range .rules -}}
{{- $alerts = append $alerts .alert -}}
{{- end -}}
{{- end -}}
{{- range $monitoring.rules.disabled -}}
{{- if not (has . $alerts) -}}
{{- include "llm-ray.refuse" (list "monitoring.rules.disabled" . "name alerts of files/alerts.yaml" (printf "take it out, or choose among %s" (join ", " $alerts))) -}}
{{- end -}}
{{- end -}}
{{- if and $monitoring.rules.enabled (not (include "llm-ray.alertGroups" . | fromJson).groups) -}}
{{- include "llm-ray.refuse" (list "monitoring.rules.disabled" $monitoring.rules.disabled "leave an alert while monitoring.rules.enabled" "take one out, or set monitoring.rules.enabled to false") -}}
{{- end -}}
{{- if and $monitoring.dashboards.enabled (not $monitoring.dashboards.labels) -}}
{{- include "llm-ray.refuse" (list "monitoring.dashboards.labels" $monitoring.dashboards.labels "hold a label while monitoring.dashboards.enabled, or Grafana's sidecar finds nothing" "set the one that the sidecar looks for, e.g. grafana_dashboard: \"1\"") -}}
{{- end -}}
{{- end -}}

{{/* Seconds of a Prometheus duration. Usage: 1m30s → 90 */}}
{{- define "llm-ray.seconds" -}}
{{- $units := dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0 -}}
{{- $total := 0.0 -}}
{{- range regexFindAll "[0-9]+[a-z]+" . -1 -}}
{{- $total = addf $total (mulf (regexFind "^[0-9]+" . | float64) (index $units (regexFind "[a-z]+$" .))) -}}
{{- end -}}
{{- $total -}}
{{- end -}}
