{{/*
Refusals. Each area has a helper that takes $ and returns one line per combination that cannot work, or nothing. It asks the
derived values of other helpers, so that it refuses what would be rendered, not what it would render itself.
*/}}

{{/* Areas, in the order of values.yaml. Usage: $ → JSON list */}}
{{- define "llm-ray.validate.areas" -}}
{{- list "names" "images" "kind" "model" "engine" "topology" "pods" "autoscaling" "gang" "otherGangs" "fabric" "faultTolerance" "expose"
  "monitoring" "security" "extraObjects" "overrides" "kuberay" "podParts" | toJson -}}
{{- end -}}

{{/* One refusal, on a line of its own. Usage: (list KEY VALUE LIMIT FIX) → KEY (VALUE) must LIMIT: FIX */}}
{{- define "llm-ray.refuse" -}}
{{- $value := index . 1 -}}
{{- $text := and (kindIs "string" $value) (ne (toString $value) "") | ternary $value (toRawJson $value) | toString -}}
{{- printf "\n%s (%s) must %s: %s" (index . 0) (replace "\n" " " $text) (index . 2) (index . 3) -}}
{{- end -}}

{{/* One refusal for each KEY with a value that says something. Usage: (list (dict KEY VALUE …) LIMIT FIX) */}}
{{- define "llm-ray.refuseAll" -}}
{{- $refusal := rest . -}}
{{- range $key, $value := index . 0 -}}
{{- if $value -}}
{{- include "llm-ray.refuse" (concat (list $key $value) $refusal) -}}
{{- end -}}
{{- end -}}
{{- end -}}
