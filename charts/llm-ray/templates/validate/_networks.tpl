{{/* More about single networks of the fabric. */}}

{{/* A definition that exists is not ours to change. Usage: (list $ NETWORK) */}}
{{- define "llm-ray.validate.existingNetwork" -}}
{{- $name := (index . 1).name -}}
{{- range $key, $value := omit (index (index . 0).Values.fabric.networks $name) "existing" "resourceName" "count" "interfaces" -}}
{{- if not (kindIs "invalid" $value) -}}
{{- include "llm-ray.refuse" (list (printf "fabric.networks.%s.%s" $name $key) $value "be unset beside existing, whose definition is not ours to change" "take it out, or take existing out") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Usage: (list $ NETWORK) */}}
{{- define "llm-ray.validate.newNetwork" -}}
{{- $fabric := (index . 0).Values.fabric -}}
{{- $key := printf "fabric.networks.%s" (index . 1).name -}}
{{- with (index . 1).spec -}}
{{- if and .pkey (not .ibKubernetes) -}}
{{- include "llm-ray.refuse" (list (printf "%s.pkey" $key) .pkey "come with ibKubernetes, which alone reads it" "set ibKubernetes to true") -}}
{{- end -}}
{{- if and .sriovNetwork.create .ibKubernetes -}}
{{- include "llm-ray.refuse" (list (printf "%s.ibKubernetes" $key) true "be false with sriovNetwork.create: a SriovIBNetwork has no field for it" "set one of them to false") -}}
{{- end -}}
{{- if and (eq .ipam.type "none") $fabric.rdma (has $fabric.type (list "sriov" "macvlan")) -}}
{{- include "llm-ray.refuse" (list (printf "%s.ipam.type" $key) "none" "give addresses with fabric.rdma over Ethernet, where a device without one has no usable GID" "set it to whereabouts or nv-ipam, or fabric.rdma to false") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Names of interfaces are unique in a pod. Usage: NETWORKS */}}
{{- define "llm-ray.validate.interfaces" -}}
{{- $seen := dict "lo" "the loopback" "eth0" "the pod network" -}}
{{- range $network := . -}}
{{- range $network.spec.interfaces -}}
{{- if hasKey $seen . -}}
{{- include "llm-ray.refuse" (list (printf "fabric.networks.%s.interfaces" $network.name) . (printf "differ from the interface of %s" (index $seen .)) "choose another name") -}}
{{- end -}}
{{- $_ := set $seen . (printf "fabric.networks.%s" $network.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
