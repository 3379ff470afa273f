{{/*
Relabelings of every scraped pod: the labels that dashboards, alerts and Ray's own dashboards select by. A pod still in
its init containers (a model download) is no target yet. Usage: {{ include "llm-ray.scrapeRelabelings" $ }} → list
*/}}
{{- define "llm-ray.scrapeRelabelings" -}}
- action: drop
  sourceLabels: [__meta_kubernetes_pod_phase]
  regex: Pending
- action: replace
  sourceLabels: [__meta_kubernetes_pod_label_ray_io_cluster]
  targetLabel: ray_io_cluster
- action: replace
  sourceLabels: [__meta_kubernetes_pod_label_llm_ray_io_name]
  targetLabel: llm_ray_name
- action: replace
  sourceLabels: [__meta_kubernetes_pod_label_llm_ray_io_group]
  targetLabel: llm_ray_group
- action: replace
  sourceLabels: [__meta_kubernetes_pod_name]
  targetLabel: pod
- action: replace
  sourceLabels: [__meta_kubernetes_pod_node_name]
  targetLabel: node
{{- end -}}

{{/*
Endpoints of a monitor, one per port name. SCRAPE holds interval, scrapeTimeout and perhaps metricRelabelings.
Usage: {{ include "llm-ray.scrapeEndpoints" (list $ SCRAPE (list "metrics")) }} → list
*/}}
{{- define "llm-ray.scrapeEndpoints" -}}
{{- $root := index . 0 -}}
{{- $scrape := index . 1 -}}
{{- range $index, $port := index . 2 -}}
{{- if $index }}
{{ end -}}
- port: {{ $port }}
  interval: {{ $scrape.interval }}
  scrapeTimeout: {{ $scrape.scrapeTimeout }}
  relabelings:
    {{- include "llm-ray.scrapeRelabelings" $root | nindent 4 }}
  metricRelabelings:
    - action: labeldrop
      regex: otel_scope_.*
    {{- with $scrape.metricRelabelings }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
{{- end -}}

{{/* Ports of the head that Ray serves metrics on; all are among the head Service's. */}}
{{- define "llm-ray.headMetricsPorts" -}}
{{- list "metrics" "as-metrics" "dash-metrics" | toJson -}}
{{- end -}}

{{/*
Labels of the head Service that KubeRay makes. A RayService has one of its own, which follows the cluster that serves.
Usage: {{ include "llm-ray.headServiceLabels" $ }} → map
*/}}
{{- define "llm-ray.headServiceLabels" -}}
ray.io/node-type: head
{{- if eq (include "llm-ray.kind" .) "RayService" }}
ray.io/originated-from-crd: RayService
ray.io/originated-from-cr-name: {{ include "llm-ray.fullname" . | quote }}
{{- else }}
ray.io/cluster: {{ include "llm-ray.fullname" . | quote }}
{{- end }}
{{- end -}}

{{/* What a rule of files/alerts.yaml selects by, narrowed to this release. Usage: {{ include "llm-ray.releaseMatchers" $ }} */}}
{{- define "llm-ray.releaseMatchers" -}}
namespace="{{ .Release.Namespace }}",llm_ray_name="{{ include "llm-ray.fullname" . }}"
{{- end -}}

{{/*
The rule groups of files/alerts.yaml as JSON {"groups": [...]}: without the disabled alerts, for this release only, with
monitoring.rules.alertLabels and a runbook_url. Usage: (include "llm-ray.alertGroups" $ | fromJson).groups
*/}}
{{- define "llm-ray.alertGroups" -}}
{{- $settings := .Values.monitoring.rules -}}
{{- $labels := include "llm-ray.overlay" (list dict $settings.alertLabels) | fromYaml -}}
{{- $matchers := include "llm-ray.releaseMatchers" . -}}
{{- $groups := list -}}
{{- range $group := (.Files.Get "files/alerts.yaml" | fromYaml).groups -}}
{{- $rules := list -}}
{{- range $rule := $group.rules -}}
{{- if not (has $rule.alert $settings.disabled) -}}
{{- $_ := set $rule "expr" ($rule.expr | replace "llm_ray_name=~\".+\"" $matchers) -}}
{{- $_ := set $rule "labels" (merge (dict) $labels $rule.labels) -}}
{{- with $settings.runbookBaseUrl -}}
{{- $_ := set $rule.annotations "runbook_url" (printf "%s/%s.md" (trimSuffix "/" .) $rule.alert) -}}
{{- end -}}
{{- $rules = append $rules $rule -}}
{{- end -}}
{{- end -}}
{{- if $rules -}}
{{- $groups = append $groups (dict "name" $group.name "rules" $rules) -}}
{{- end -}}
{{- end -}}
{{- dict "groups" $groups | toJson -}}
{{- end -}}
