{{/*
Service meshes carry client traffic alone. What Ray, gloo and NCCL open between the pods goes by random ports and must stay
outside, in both directions; so do downloads and wait-gcs-ready, which run before any proxy could help them.
*/}}

{{/* Labels of the head and worker pods. Usage: $ → YAML map */}}
{{- define "llm-ray.meshPodLabels" -}}
{{- if eq .Values.expose.mesh.type "istio" -}}
sidecar.istio.io/inject: "true"
{{- else -}}
{}
{{- end -}}
{{- end -}}

{{/* Annotations of the head and worker pods. Usage: $ → YAML map */}}
{{- define "llm-ray.meshPodAnnotations" -}}
{{- $type := .Values.expose.mesh.type -}}
{{- if eq $type "istio" -}}
{{- include "llm-ray.istioPodAnnotations" . -}}
{{- else if eq $type "linkerd" -}}
{{- include "llm-ray.linkerdPodAnnotations" . -}}
{{- else -}}
{}
{{- end -}}
{{- end -}}

{{/*
The proxy must be a native sidecar: KubeRay takes the first container of a live pod for Ray's, and holding the application
would put the proxy there. DNS and HTTP probes pass it by as well. Usage: $ → YAML map
*/}}
{{- define "llm-ray.istioPodAnnotations" -}}
{{- $proxy := dict "holdApplicationUntilProxyStarts" false "proxyMetadata" (dict "ISTIO_META_DNS_CAPTURE" "false") -}}
proxy.istio.io/config: {{ $proxy | toJson | quote }}
sidecar.istio.io/nativeSidecar: "true"
sidecar.istio.io/rewriteAppHTTPProbers: "false"
traffic.sidecar.istio.io/includeInboundPorts: "{{ int .Values.serve.httpPort }},{{ int .Values.serve.grpcPort }}"
traffic.sidecar.istio.io/includeOutboundIPRanges: ""
{{- end -}}

{{/* Linkerd can only be told what to skip. 4143 is where its proxies meet. Usage: $ → YAML map */}}
{{- define "llm-ray.linkerdPodAnnotations" -}}
config.beta.linkerd.io/proxy-enable-native-sidecar: "true"
config.linkerd.io/proxy-await: disabled
config.linkerd.io/proxy-enable-native-sidecar: "true"
config.linkerd.io/skip-inbound-ports: {{ include "llm-ray.portsWithout" (list .Values.serve.httpPort .Values.serve.grpcPort 4143) | quote }}
config.linkerd.io/skip-outbound-ports: 1-65535
linkerd.io/inject: enabled
{{- end -}}

{{/* All ports but these, as ranges. Usage: (list 8000 9000) → 1-7999,8001-8999,9001-65535 */}}
{{- define "llm-ray.portsWithout" -}}
{{- $ranges := list -}}
{{- $next := 1 -}}
{{- range append (include "llm-ray.sortedPorts" . | fromJsonArray) 65536 -}}
{{- $port := int . -}}
{{- if gt $port $next -}}
{{- $ranges = append $ranges (eq $next (sub $port 1 | int) | ternary (toString $next) (printf "%d-%d" $next (sub $port 1))) -}}
{{- end -}}
{{- $next = add $port 1 | int -}}
{{- end -}}
{{- join "," $ranges -}}
{{- end -}}

{{/* Each port once, ascending. Usage: (list 9000 8000 9000) → JSON [8000,9000] */}}
{{- define "llm-ray.sortedPorts" -}}
{{- $padded := list -}}
{{- range . -}}
{{- $padded = append $padded (int . | printf "%05d") -}}
{{- end -}}
{{- $ports := list -}}
{{- range $padded | uniq | sortAlpha -}}
{{- $ports = append $ports (regexReplaceAll "^0+" . "" | int) -}}
{{- end -}}
{{- toJson $ports -}}
{{- end -}}

{{/* Annotations of the release's own client, the test pod: it joins the mesh, and its proxy ends when it does. Usage: $ → YAML map */}}
{{- define "llm-ray.meshClientAnnotations" -}}
{{- $type := .Values.expose.mesh.type -}}
{{- if eq $type "istio" -}}
sidecar.istio.io/nativeSidecar: "true"
{{- else if eq $type "linkerd" -}}
config.beta.linkerd.io/proxy-enable-native-sidecar: "true"
config.linkerd.io/proxy-enable-native-sidecar: "true"
linkerd.io/inject: enabled
{{- else -}}
{}
{{- end -}}
{{- end -}}
