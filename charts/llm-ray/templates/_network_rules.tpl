{{/* What the network policies allow. All helpers return YAML lists of rules. */}}

{{/*
Rules for what comes in at a Ray pod. Ray's own pods reach each other on every port and protocol: Ray, gloo and NCCL choose
ports at random, and Serve's replicas listen on ranges. Probes need no rule: a node always reaches its own pods.
Client traffic is not tied to the label llm-ray.io/serving: a pod that loses the label still finishes its streams, and some
network plugins end connections that a policy no longer allows. Usage: (list $ "head" or "worker")
*/}}
{{- define "llm-ray.ingressRules" -}}
{{- $root := index . 0 -}}
{{- $policy := $root.Values.networkPolicy -}}
{{- $head := eq (index . 1) "head" -}}
- from:
    {{- include "llm-ray.rayPeers" $root | nindent 4 }}
- ports:
    {{- include "llm-ray.metricsPorts" . | nindent 4 }}
  {{- with $policy.prometheus }}
  from:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- if not (and $head $root.Values.serve.excludeHead) }}
- ports:
    {{- include "llm-ray.clientPorts" $root | nindent 4 }}
  {{- with $policy.clients }}
  from:
    {{- toYaml . | nindent 4 }}
    {{- include "llm-ray.podPeers" (list $root "test") | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* More for the head: the operator, and people. An empty set of labels would be every pod, so it is no rule. Usage: $ */}}
{{- define "llm-ray.headIngressRules" -}}
{{- with include "llm-ray.overlay" (list dict .Values.networkPolicy.operatorLabels) | fromYaml }}
- from:
    - namespaceSelector: {}
      podSelector:
        matchLabels:
          {{- toYaml . | nindent 10 }}
  ports:
    {{- include "llm-ray.tcpPorts" (list 8265 52365 $.Values.serve.httpPort) | nindent 4 }}
{{- end }}
{{- with .Values.networkPolicy.dashboardClients }}
- from:
    {{- toYaml . | nindent 4 }}
  ports:
    {{- include "llm-ray.tcpPorts" (list 8265 10001) | nindent 4 }}
{{- end }}
{{- end -}}

{{/* Rules that every pod needs to go out: DNS, and the control plane of the mesh. Usage: $ */}}
{{- define "llm-ray.commonEgressRules" -}}
- ports:
    {{- range .Values.networkPolicy.dns.ports }}
    - {protocol: UDP, port: {{ int . }}}
    - {protocol: TCP, port: {{ int . }}}
    {{- end }}
  {{- with .Values.networkPolicy.dns.peers }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- with index (dict "istio" (list 15012) "linkerd" (list 8080 8086 8090)) .Values.expose.mesh.type }}
- to:
    - namespaceSelector: {}
  ports:
    {{- include "llm-ray.tcpPorts" . | nindent 4 }}
{{- end }}
{{- end -}}

{{/* Rules for where a Ray pod connects to. Usage: (list $ "head" or "worker") */}}
{{- define "llm-ray.egressRules" -}}
{{- $root := index . 0 -}}
{{- $policy := $root.Values.networkPolicy -}}
- to:
    {{- include "llm-ray.rayPeers" $root | nindent 4 }}
{{ include "llm-ray.commonEgressRules" $root }}
{{- if eq (index . 1) "head" }}
- ports:
    {{- include "llm-ray.tcpPorts" $policy.apiServer.ports | nindent 4 }}
  {{- with $policy.apiServer.peers }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- if kindIs "invalid" $policy.egress }}
- ports:
    {{- include "llm-ray.tcpPorts" (include "llm-ray.outsidePorts" . | fromJsonArray) | nindent 4 }}
{{- else }}
{{- with $policy.egress }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end -}}
