{{/* Labels of all the release's pods, whatever their component. Usage: $ → YAML map */}}
{{- define "llm-ray.releasePodLabels" -}}
{{- omit (include "llm-ray.selectorLabels" (dict "root" . "component" "serve") | fromYaml) "app.kubernetes.io/component" | toYaml -}}
{{- end -}}

{{/* parentRefs of a route, with the API's defaults written out, which Argo CD would show as a difference. Usage: PARENTREFS → YAML list */}}
{{- define "llm-ray.parentRefs" -}}
{{- $out := list -}}
{{- range . -}}
{{- $gateway := dict "group" "gateway.networking.k8s.io" "kind" "Gateway" -}}
{{- $out = append $out (include "llm-ray.overlay" (list $gateway .) | fromYaml) -}}
{{- end -}}
{{- toYaml $out -}}
{{- end -}}

{{/* The clients' Service as a route's backend, defaults written out too. Usage: (list $ PORT) → YAML list */}}
{{- define "llm-ray.backendRefs" -}}
- group: ""
  kind: Service
  name: {{ include "llm-ray.serveServiceName" (index . 0) }}
  port: {{ index . 1 | int }}
  weight: 1
{{- end -}}

{{/*
Who may call the app in Istio: `from` of an AuthorizationPolicy, or nothing for everyone. The test pod runs as the workers'
account; an account `default` is not let in, since any pod of the namespace may have it. Usage: $ → YAML list
*/}}
{{- define "llm-ray.istioSources" -}}
{{- $istio := .Values.expose.mesh.istio -}}
{{- $account := include "llm-ray.serviceAccountName" (list . "worker") -}}
{{- $principals := $istio.allowedPrincipals | default list -}}
{{- $sources := list -}}
{{- with $istio.allowedNamespaces -}}
{{- $sources = append $sources (dict "source" (dict "namespaces" .)) -}}
{{- end -}}
{{- if and (or $sources $principals) .Values.tests.enabled (ne $account "default") -}}
{{- $principals = append $principals (printf "*/ns/%s/sa/%s" .Release.Namespace $account) -}}
{{- else if and (not $sources) (not $principals) (eq $istio.mtls "STRICT") -}}
{{- $principals = list "*" -}}
{{- end -}}
{{- with $principals -}}
{{- $sources = append $sources (dict "source" (dict "principals" .)) -}}
{{- end -}}
{{- toYaml $sources -}}
{{- end -}}
