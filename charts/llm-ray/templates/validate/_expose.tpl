{{/* How clients come in. Usage: $ */}}
{{- define "llm-ray.validate.expose" -}}
{{- if and (eq .Values.serve.proxyLocation "HeadOnly") .Values.serve.excludeHead -}}
{{- include "llm-ray.refuse" (list "serve.proxyLocation" "HeadOnly" "not be combined with serve.excludeHead, which keeps clients off the only proxy" "set it to EveryNode, or excludeHead to false") -}}
{{- end -}}
{{- with .Values.expose.service -}}
{{- if ne .type "LoadBalancer" -}}
{{- include "llm-ray.refuseAll" (list (dict "expose.service.loadBalancerClass" .loadBalancerClass "expose.service.loadBalancerSourceRanges" .loadBalancerSourceRanges)
  (printf "be unset with expose.service.type %s" .type) "take it out, or set type to LoadBalancer") -}}
{{- end -}}
{{- if and (eq .type "ClusterIP") (eq .externalTrafficPolicy "Local") -}}
{{- include "llm-ray.refuse" (list "expose.service.externalTrafficPolicy" "Local" "be Cluster with expose.service.type ClusterIP" "set it to Cluster, or type to LoadBalancer or NodePort") -}}
{{- end -}}
{{- end -}}
{{- if and .Values.expose.ingress.enabled (not .Values.expose.ingress.hosts) -}}
{{- include "llm-ray.refuse" (list "expose.ingress.hosts" list "name at least one host while expose.ingress.enabled" "add one, or switch the Ingress off") -}}
{{- end -}}
{{- range $route := list "httpRoute" "grpcRoute" -}}
{{- with index $.Values.expose $route -}}
{{- if and .enabled (not .parentRefs) -}}
{{- include "llm-ray.refuse" (list (printf "expose.%s.parentRefs" $route) list (printf "name at least one Gateway while expose.%s.enabled" $route) "add one, e.g. {name: public, namespace: gateways}") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "llm-ray.validate.routeKinds" . -}}
{{- include "llm-ray.validate.mesh" . -}}
{{- end -}}

{{/* A listener takes one kind of route for a host name and drops the other. Usage: $ */}}
{{- define "llm-ray.validate.routeKinds" -}}
{{- $http := .Values.expose.httpRoute -}}
{{- $grpc := .Values.expose.grpcRoute -}}
{{- if and $http.enabled $grpc.enabled -}}
{{- $hosts := $grpc.hostnames | default list -}}
{{- $clash := or (not $http.hostnames) (not $hosts) -}}
{{- range $http.hostnames -}}
{{- $clash = or $clash (has . $hosts) -}}
{{- end -}}
{{- range $parent := $http.parentRefs -}}
{{- if and $clash (has $parent $grpc.parentRefs) -}}
{{- include "llm-ray.refuse" (list "expose.grpcRoute.hostnames" $hosts (printf "share none with expose.httpRoute.hostnames (%s) on one listener, which would drop one of the routes" (toJson $http.hostnames)) "give gRPC a host name of its own, or another sectionName") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Usage: $ */}}
{{- define "llm-ray.validate.mesh" -}}
{{- $mesh := .Values.expose.mesh -}}
{{- if ne $mesh.type "istio" -}}
{{- include "llm-ray.refuseAll" (list (dict "expose.mesh.istio.allowedNamespaces" $mesh.istio.allowedNamespaces "expose.mesh.istio.allowedPrincipals" $mesh.istio.allowedPrincipals)
  (printf "be empty with expose.mesh.type %s, where nothing would check it" $mesh.type) "set expose.mesh.type to istio, or restrict clients by networkPolicy.clients") -}}
{{- end -}}
{{- if ne $mesh.type "none" -}}
{{- $pods := dict "head" .Values.head.hostNetwork -}}
{{- range (include "llm-ray.groups" . | fromJson).groups -}}
{{- $_ := set $pods (printf "workers.%s" .name) .spec.hostNetwork -}}
{{- end -}}
{{- range $key, $host := $pods -}}
{{- if $host -}}
{{- include "llm-ray.refuse" (list (printf "%s.hostNetwork" $key) true (printf "be false with expose.mesh.type %s, which has no proxy in the node's network" $mesh.type) "set it to false, or mesh.type to none") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
