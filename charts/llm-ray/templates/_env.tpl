{{/* Maps of the values, and the lists that Kubernetes makes of them. */}}

{{/* Environment maps laid over each other, the last wins whole; null says nothing. Usage: (list MAP MAP …) → YAML map */}}
{{- define "llm-ray.envMap" -}}
{{- $out := dict -}}
{{- range $map := . -}}
{{- range $name, $value := $map -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $_ := set $out $name $value -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $out -}}
{{- end -}}

{{/* Container env, sorted by name. Usage: MAP of name → string or {valueFrom: …} → YAML list */}}
{{- define "llm-ray.env" -}}
{{- $out := list -}}
{{- range $name := keys . | sortAlpha -}}
{{- $value := index $ $name -}}
{{- if kindIs "map" $value -}}
{{- $out = append $out (merge (dict "name" $name) $value) -}}
{{- else if not (kindIs "invalid" $value) -}}
{{- $out = append $out (dict "name" $name "value" (toString $value)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $out -}}
{{- end -}}

{{/* A map of things by name as a list sorted by it, the name put into each under KEY. Usage: (list MAP KEY) → YAML list */}}
{{- define "llm-ray.named" -}}
{{- $out := list -}}
{{- $map := index . 0 -}}
{{- $key := index . 1 -}}
{{- range $name := keys $map | sortAlpha -}}
{{- with index $map $name -}}
{{- $out = append $out (merge (dict $key $name) (include "llm-ray.overlay" (list dict .) | fromYaml)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $out -}}
{{- end -}}
