{{/*
Kubernetes' own spelling. The operator writes a whole RayService back when it adds its finalizer; whatever this changes, 2 to
"2" or an empty list to nothing, is the operator's from then on, and the next server-side upgrade a conflict.
*/}}

{{/* Spells a map as Kubernetes' types would, in place; prints nothing. Usage: MAP */}}
{{- define "llm-ray.canonical" -}}
{{- $map := . -}}
{{- range $key, $value := . -}}
{{- if kindIs "map" $value -}}
{{- if has $key (list "limits" "requests") -}}
{{- range $name, $amount := $value -}}
{{- $_ := set $value $name (include "llm-ray.canonicalQuantity" $amount) -}}
{{- end -}}
{{- else -}}
{{- if and (eq $key "resourceFieldRef") (not $value.divisor) -}}
{{- $_ := set $value "divisor" "0" -}}
{{- else if eq $key "volumeClaimTemplate" -}}
{{- $_ := set $value "metadata" ($value.metadata | default dict) -}}
{{- $_ := set $value "spec" (merge ($value.spec | default dict) (dict "resources" dict)) -}}
{{- end -}}
{{- include "llm-ray.canonical" $value -}}
{{- end -}}
{{- if and (not $value) (has $key (list "annotations" "labels" "limits" "matchLabels" "nodeSelector" "requests")) -}}
{{- $_ := unset $map $key -}}
{{- end -}}
{{- else if kindIs "slice" $value -}}
{{- range $value -}}
{{- if kindIs "map" . -}}
{{- if and (has $key (list "containers" "initContainers")) (not .resources) -}}
{{- $_ := set . "resources" dict -}}
{{- end -}}
{{- include "llm-ray.canonical" . -}}
{{- end -}}
{{- end -}}
{{- if not $value -}}
{{- $_ := unset $map $key -}}
{{- end -}}
{{- else if has $key (list "divisor" "sizeLimit") -}}
{{- $_ := set $map $key (include "llm-ray.canonicalQuantity" $value) -}}
{{- else if and (not $value) (include "llm-ray.isLeftOut" (list $map $key $value)) -}}
{{- $_ := unset $map $key -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* "true" where Kubernetes leaves an empty scalar out; others say something: an empty storageClassName is no class. Usage: (list MAP KEY VALUE) */}}
{{- define "llm-ray.isLeftOut" -}}
{{- $map := index . 0 -}}
{{- $key := index . 1 -}}
{{- if kindIs "invalid" (index . 2) -}}
true
{{- else if has $key (list "hostIPC" "hostNetwork" "hostPID" "medium" "stdin" "stdinOnce" "subPath" "tty" "value") -}}
true
{{- else if and (eq $key "readOnly") (not $map.driver) -}}
true
{{- end -}}
{{- end -}}

{{/* A quantity in its shortest form, in the kind of unit that it has. Usage: "1.5Gi" | "1000m" | 2 → "1536Mi" | "1" | "2" */}}
{{- define "llm-ray.canonicalQuantity" -}}
{{- $unit := kindIs "string" . | ternary (toString . | regexFind "[A-Za-z].*$") "" -}}
{{- if has $unit (list "n" "u" "P" "E" "Pi" "Ei") -}}
{{- . -}}
{{- else -}}
{{- $milli := include "llm-ray.milli" . | atoi -}}
{{- $step := 1000 -}}
{{- $units := list "" "k" "M" "G" "T" "P" "E" -}}
{{- if regexMatch "^[eE]" $unit -}}
{{- $units = list "" "e3" "e6" "e9" "e12" "e15" "e18" -}}
{{- else if and (hasSuffix "i" $unit) (ge $milli 1024000) (not (mod $milli 1000)) -}}
{{- $step = 1024 -}}
{{- $units = list "" "Ki" "Mi" "Gi" "Ti" "Pi" "Ei" -}}
{{- end -}}
{{- if mod $milli 1000 -}}
{{- $milli }}{{ regexMatch "^[eE]" $unit | ternary "e-3" "m" -}}
{{- else -}}
{{- $number := div $milli 1000 -}}
{{- $power := 0 -}}
{{- range until 6 -}}
{{- if and $number (not (mod $number $step)) -}}
{{- $number = div $number $step -}}
{{- $power = add1 $power -}}
{{- end -}}
{{- end -}}
{{- $number }}{{ index $units (int $power) -}}
{{- end -}}
{{- end -}}
{{- end -}}
