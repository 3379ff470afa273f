{{/* Peers and ports of the network policies. All helpers return YAML lists unless they say otherwise. */}}

{{/*
Port of an address: scheme://user@host:port/path, host:port or host; without a port the scheme's, else Redis's.
Usage: "http://collector:4318/v1" → 4318
*/}}
{{- define "llm-ray.urlPort" -}}
{{- $scheme := regexFind "^[a-zA-Z][a-zA-Z0-9+.-]*://" . | lower | trimSuffix "://" -}}
{{- $authority := regexReplaceAll "^[a-zA-Z][a-zA-Z0-9+.-]*://" . "" | regexFind "^[^/?#]*" -}}
{{- $port := regexFind ":[0-9]+$" $authority | trimPrefix ":" -}}
{{- $port | default (index (dict "http" "80" "https" "443") $scheme | default "6379") -}}
{{- end -}}

{{/* The release's Ray pods as peers: head and workers, of both clusters during an upgrade. Usage: $ */}}
{{- define "llm-ray.rayPeers" -}}
{{- include "llm-ray.podPeers" (list . "head" "worker") -}}
{{- end -}}

{{/* Pods of the release, by component. Usage: (list $ "test") */}}
{{- define "llm-ray.podPeers" -}}
{{- $root := first . -}}
{{- $peers := list -}}
{{- range rest . -}}
{{- $labels := include "llm-ray.selectorLabels" (dict "root" $root "component" .) | fromYaml -}}
{{- $peers = append $peers (dict "podSelector" (dict "matchLabels" $labels)) -}}
{{- end -}}
{{- toYaml $peers -}}
{{- end -}}

{{/* Ports of a rule. Usage: (list 8000 9000) */}}
{{- define "llm-ray.tcpPorts" -}}
{{- $ports := list -}}
{{- range . -}}
{{- $ports = append $ports (dict "protocol" "TCP" "port" (int .)) -}}
{{- end -}}
{{- toYaml $ports -}}
{{- end -}}

{{/* Ports that clients reach on a Ray pod; Linkerd's proxies talk to each other by 4143. Usage: $ */}}
{{- define "llm-ray.clientPorts" -}}
{{- $ports := list .Values.serve.httpPort .Values.serve.grpcPort -}}
{{- if eq .Values.expose.mesh.type "linkerd" -}}
{{- $ports = append $ports 4143 -}}
{{- end -}}
{{- include "llm-ray.tcpPorts" $ports -}}
{{- end -}}

{{/* Ports that Prometheus scrapes: Ray's, and those of the mesh's proxy. Usage: (list $ "head") */}}
{{- define "llm-ray.metricsPorts" -}}
{{- $mesh := index (dict "istio" (list 15020 15090) "linkerd" (list 4191)) (index . 0).Values.expose.mesh.type | default list -}}
{{- $head := eq (index . 1) "head" | ternary (list 44217 44227) list -}}
{{- include "llm-ray.tcpPorts" (concat (list 8080) $head $mesh) -}}
{{- end -}}

{{/* Ports beyond the cluster that follow from other values. Usage: (list $ "head" or "worker") → JSON list */}}
{{- define "llm-ray.outsidePorts" -}}
{{- $values := (index . 0).Values -}}
{{- $urls := list -}}
{{- if and (or (eq (index . 1) "worker") (gt (int $values.head.numCpus) 0)) (hasPrefix "s3://" $values.model.source) -}}
{{- $urls = append $urls $values.model.s3.endpoint -}}
{{- end -}}
{{- if and (eq (index . 1) "head") (eq $values.faultTolerance.gcs.type "redis") -}}
{{- $urls = append $urls $values.faultTolerance.gcs.redis.address -}}
{{- end -}}
{{- with $values.monitoring.tracing -}}
{{- $urls = append $urls (.enabled | ternary .endpoint "") -}}
{{- end -}}
{{- with $values.monitoring.logs.collector -}}
{{- $urls = concat $urls (.enabled | ternary (list .lokiEndpoint .elasticsearchEndpoint) list) -}}
{{- end -}}
{{- $ports := list 443 -}}
{{- range compact $urls -}}
{{- $ports = append $ports (include "llm-ray.urlPort" . | int) -}}
{{- end -}}
{{- include "llm-ray.sortedPorts" $ports -}}
{{- end -}}
