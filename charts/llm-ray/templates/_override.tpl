{{/*
llm-ray.overlay, but lists under `containers` and `initContainers` merge by name; new names are appended.
Usage: (list DST SRC) → YAML
*/}}
{{- define "llm-ray.override" -}}
{{- $out := deepCopy (index . 0) -}}
{{- range $key, $value := index . 1 -}}
{{- $below := index $out $key -}}
{{- if kindIs "map" $value -}}
{{- $_ := set $out $key (include "llm-ray.override" (list (kindIs "map" $below | ternary $below dict) $value) | fromYaml) -}}
{{- else if and (has $key (list "containers" "initContainers")) (kindIs "slice" $value) (kindIs "slice" $below) -}}
{{- $_ := set $out $key (include "llm-ray.overrideByName" (list $below $value) | fromYamlArray) -}}
{{- else if not (kindIs "invalid" $value) -}}
{{- $_ := set $out $key $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $out -}}
{{- end -}}

{{/* Containers of SRC laid over those of DST that have the same name. Usage: (list DST SRC) → YAML list */}}
{{- define "llm-ray.overrideByName" -}}
{{- $changes := dict -}}
{{- range index . 1 -}}
{{- $_ := set $changes .name . -}}
{{- end -}}
{{- $out := list -}}
{{- range index . 0 -}}
{{- $out = append $out (include "llm-ray.override" (list . (index $changes .name | default dict)) | fromYaml) -}}
{{- $_ := unset $changes .name -}}
{{- end -}}
{{- range index . 1 -}}
{{- if hasKey $changes .name -}}
{{- $out = append $out . -}}
{{- end -}}
{{- end -}}
{{- toYaml $out -}}
{{- end -}}
