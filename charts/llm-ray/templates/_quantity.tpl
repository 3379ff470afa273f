{{/* Arithmetic with Kubernetes quantities, in whole thousandths, because a template has no other exact number. */}}

{{/* Thousandths in a quantity, rounded up. Usage: "1500m" | 2 | "4Gi" → digits */}}
{{- define "llm-ray.milli" -}}
{{- $text := toString . -}}
{{- $number := regexFind "^[0-9]*\\.?[0-9]*" $text -}}
{{- $unit := trimPrefix $number $text -}}
{{- $units := dict "m" 1 "" 1000 "k" 1000000 "M" 1000000000 "G" 1000000000000 "T" 1000000000000000 "P" 1000000000000000000
  "Ki" 1024000 "Mi" 1048576000 "Gi" 1073741824000 "Ti" 1099511627776000 "Pi" 1125899906842624000 -}}
{{- if or (not (kindIs "string" .)) (regexMatch "^[eE][-+]?[0-9]+$" $unit) -}}
{{- mulf (float64 .) 1000 | ceil | printf "%.0f" -}}
{{- else -}}
{{- $factor := index $units $unit | default 0 -}}
{{- $parts := splitList "." $number -}}
{{- $fraction := mulf (printf "0.%s0" (rest $parts | join "") | float64) $factor | ceil | int64 -}}
{{- add (mul (first $parts | atoi) $factor) $fraction -}}
{{- end -}}
{{- end -}}

{{/* Quantity of so many thousandths, in the largest binary unit where bytes are counted. Usage: (list NAME MILLI) → "2Gi" */}}
{{- define "llm-ray.quantity" -}}
{{- $milli := index . 1 | int64 -}}
{{- $whole := div $milli 1000 -}}
{{- $bytes := regexMatch "^(memory|ephemeral-storage|hugepages-.+)$" (index . 0) -}}
{{- if mod $milli 1000 -}}
{{- $milli }}m
{{- else if and $bytes $whole (not (mod $whole 1073741824)) -}}
{{- div $whole 1073741824 }}Gi
{{- else if and $bytes $whole (not (mod $whole 1048576)) -}}
{{- div $whole 1048576 }}Mi
{{- else -}}
{{- $whole -}}
{{- end -}}
{{- end -}}

{{/* Adds TIMES what a container requests (its limits where it requests nothing) to the map TOTAL. Usage: (list TOTAL CONTAINER TIMES) */}}
{{- define "llm-ray.addRequests" -}}
{{- $total := index . 0 -}}
{{- $times := index . 2 -}}
{{- $resources := (index . 1).resources | default dict -}}
{{- range $name, $amount := merge (dict) ($resources.requests | default dict) ($resources.limits | default dict) -}}
{{- $milli := mul (include "llm-ray.milli" $amount | atoi) $times -}}
{{- $_ := set $total $name (add (index $total $name | default 0) $milli) -}}
{{- end -}}
{{- end -}}

{{/*
What the scheduler reserves for a pod, added TIMES to the map TOTAL in thousandths: all containers and sidecars together,
or one init container and the sidecars before it where that is more. Usage: (list TOTAL PODSPEC TIMES)
*/}}
{{- define "llm-ray.addPod" -}}
{{- $total := index . 0 -}}
{{- $times := index . 2 -}}
{{- $running := dict -}}
{{- $peak := dict -}}
{{- range (index . 1).initContainers -}}
{{- if eq (.restartPolicy | default "") "Always" -}}
{{- include "llm-ray.addRequests" (list $running . 1) -}}
{{- else -}}
{{- $alone := deepCopy $running -}}
{{- include "llm-ray.addRequests" (list $alone . 1) -}}
{{- range $name, $milli := $alone -}}
{{- $_ := set $peak $name (max (index $peak $name | default 0) $milli) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range (index . 1).containers -}}
{{- include "llm-ray.addRequests" (list $running . 1) -}}
{{- end -}}
{{- range $name := concat (keys $running) (keys $peak) | uniq -}}
{{- $milli := mul (max (index $running $name | default 0) (index $peak $name | default 0)) $times -}}
{{- $_ := set $total $name (add (index $total $name | default 0) $milli) -}}
{{- end -}}
{{- end -}}
